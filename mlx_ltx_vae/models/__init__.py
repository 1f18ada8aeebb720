"""Networks: what each consists of (`specs`), and the modules that compute it."""
