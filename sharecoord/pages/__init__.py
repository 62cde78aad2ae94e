"""HTML pages that need nothing but themselves: style, tables and plots. Text in, text out."""
