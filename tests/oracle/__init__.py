"""What `transformers` computes on tiny models, stored so that the tests can compare burnish with it without torch."""
