"""The site of these pages: python -m sphinx -W -b html docs build/site (the extra ``docs``)."""

project = "qrun"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "qrun"
html_copy_source = False
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]
