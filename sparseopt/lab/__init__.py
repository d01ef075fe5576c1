"""What a person runs: data, networks, recipes, training, figures, and the commands around them."""
