"""A local page with sliders: the ODE and exact runs next to each other, links and exports.

`states.py` defines the states of the page, `curves.py` computes their curves, and `server.py`
serves the page (`page.html`, `page.css`, `page.js`). The documentation has the same page, with
curves that were computed when it was built (`curves.grid`).
"""
