package main

import (
	"html/template"
	"strings"
)

// markup turns the little of CommonMark that the document uses into HTML:
// paragraphs, lists and code between backticks.
func markup(text string) template.HTML {
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if items, ok := strings.CutPrefix(strings.TrimSpace(block), "- "); ok {
			out.WriteString("<ul>\n")
			for item := range strings.SplitSeq(items, "\n- ") {
				out.WriteString("<li>" + string(inline(item)) + "</li>\n")
			}
			out.WriteString("</ul>\n")
			continue
		}
		out.WriteString("<p>" + string(inline(block)) + "</p>\n")
	}
	return template.HTML(out.String()) //nolint:gosec // What is not ours is escaped by inline.
}

// inline is markup within a paragraph.
func inline(text string) template.HTML {
	var out strings.Builder
	for i, part := range strings.Split(strings.Join(strings.Fields(text), " "), "`") {
		escaped := template.HTMLEscapeString(part)
		if i%2 == 1 {
			escaped = "<code>" + escaped + "</code>"
		}
		out.WriteString(escaped)
	}
	return template.HTML(out.String()) //nolint:gosec // Each part is escaped.
}
