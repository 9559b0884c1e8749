"""Charts and text for terminals: pure functions of numbers and a size, without Textual.

In: bins of a series, axes, markers. Out: lines of (text, style key), or a picture as SVG, PNG or
CSV. `bins` and `binned_series` reduce a series, `glyphs` and `raster` turn curves into characters, `chart` lays out a
chart. Read `chart` first.
"""
