import json
import os


class Accelerator:
    is_main_process = property(lambda self: os.environ.get("RANK", "0") == "0")

    def save_state(self, output_dir):
        os.makedirs(output_dir, exist_ok=True)
        with open(os.path.join(output_dir, "model.safetensors"), "wb") as file:
            header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
            file.write(len(header).to_bytes(8, "little") + header + bytes(4))

    def print(self, *words):
        if self.is_main_process:
            print(*words, flush=True)
