"""What each page knows: one function a page, SQL only, the tenant in every query, at most 12 queries a page.

The functions return plain data; the HTML page and its JSON are made from the same return value.
"""
