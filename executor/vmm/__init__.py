"""Physical memory and addresses of a device, apart: reserve, create, map, allow access, unmap, release."""
