"""Who may do what: tokens, roles, and the checks that keep browsers of other sites out."""
