"""Where each framework's seams are. One file a framework; the only part of profkit.instrument that imports them."""
