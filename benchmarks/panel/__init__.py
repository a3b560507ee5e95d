"""The live panel, measured in a real JupyterLab."""
