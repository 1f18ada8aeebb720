"""Networks: their layer specs (`specs`) and the modules that compute them."""
