"""What tokens cost: list prices of models, a person's own prices, and sums that may be incomplete.

Only faces load it, and only when they show money; it never uses the network.
"""
