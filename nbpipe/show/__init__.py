"""A run as others see it: as plain data, as text, as pictures, as a diagnosis.

It knows a run by the protocol in `watch` alone, and needs no notebook.
"""
