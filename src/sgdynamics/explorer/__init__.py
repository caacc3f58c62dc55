"""A local page to try things: sliders, the ODE and exact runs side by side, links and exports.

`states.py` says what a page can show, `curves.py` computes it, `server.py` serves the page (`page.html`, `page.css`, `page.js`); the
documentation has the same page with curves that its build has computed (`curves.grid`).
"""
