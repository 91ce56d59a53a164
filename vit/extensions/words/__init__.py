"""Words of other packages: what timm, ultralytics, AutoTrain, MMPretrain and others call an option.

Adds no command: a word with the same meaning works as typed, and any other one is answered by the
line to type. words.csv has the words. Page: docs/coming_from.md.
"""
