DROP FUNCTION lucius.clear(text, text[]);
