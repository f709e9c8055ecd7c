"""The commands of language: generate, evaluate, think-curve and landscape.

generate.py reads prompts and prints texts; generator.py is its token loop, and decoder.py predicts token by token from
a cache. evaluate.py measures a text (text_loss.py) or asks questions (questions.py). think_curve.py has its texts and
its report beside it. walk.py is the walk at positions of a text, which all of them use.
"""
