"""How every command reads its options, names its choices and fails: the parts that commands are made of."""
