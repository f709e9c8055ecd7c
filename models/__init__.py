"""The models, from what a task trains down to the parts of a network.

tasks' own models (language)     what is observed, predicted and judged; a subclass of Model or EnergyModel
energy_model, walk, spaces       training and evaluation of predictions that walk down an energy, in any space
transformer, energy_transformer  networks
layers/                          their parts, with input gradients as formulas

May import: core.
"""
