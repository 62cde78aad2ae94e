"""`Worker`: rules without clock or loop (`core`, `leases`, `demand`), and the shell around them."""
