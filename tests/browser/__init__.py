"""JupyterLab in a real browser."""
