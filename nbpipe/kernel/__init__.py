"""What nbpipe needs of ipykernel's private parts: all of it, and nowhere else.

A cell that runs keeps the kernel's main shell busy: what a widget sends waits until it ends.
The pump takes what waits from inside the running cell, answers widgets, and hands all the rest
back to the kernel. `cure` sets some habits of ipykernel right, on our own widgets only.

Seen to work with ipykernel 6.29 to 7.4. Where a part that is needed is missing, the pump is off.
"""

from .cure import cure
from .pump import Pump

__all__ = ["Pump", "cure"]
