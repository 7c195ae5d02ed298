"""The universal adversarial perturbation of the paper's section V-A: loss, inputs, pictures."""
