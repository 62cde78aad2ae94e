"""What watches a simulated life: each judge keeps some of the product's promises."""
