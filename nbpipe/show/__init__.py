"""A run as others see it: as plain data, as text, as pictures, as a diagnosis."""
