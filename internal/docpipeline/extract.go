package docpipeline

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// maxTitle is the longest title, in characters.
const maxTitle = 200

// Text is an extracted document.
type Text struct {
	// Name is the document's path in its folder.
	Name string `json:"name"`
	// Title is its title, or its name if it has none.
	Title string `json:"title"`
	// Language is the BCP 47 tag in the command.
	Language string `json:"language"`
	// Body is its text, one line for each paragraph.
	Body string `json:"body"`
}

// Extract extracts the text of a document, whose kind follows from the extension of
// its name: .txt, .html or .htm. It returns [ErrPermanent] for another kind and for
// a document without text.
func Extract(name string, data []byte, language string) (Text, error) {
	source := clean(string(data))
	var title, body string
	switch ending := strings.ToLower(filepath.Ext(name)); ending {
	case ".txt":
		title, body = fromText(source)
	case ".html", ".htm":
		title, body = fromHTML(source)
	default:
		return Text{}, fmt.Errorf("%w: %q is neither text nor HTML", ErrPermanent, name)
	}
	if body == "" {
		return Text{}, fmt.Errorf("%w: %q holds no text", ErrPermanent, name)
	}
	if title = shorten(squeeze(title), maxTitle); title == "" {
		title = name
	}
	return Text{Name: name, Title: title, Language: language, Body: body}, nil
}

// fromText reads a text file: the first line is its title, and blank lines separate
// its paragraphs.
func fromText(source string) (title, body string) {
	source = strings.TrimSpace(strings.ReplaceAll(source, "\r\n", "\n"))
	title, _, _ = strings.Cut(source, "\n")
	var parts []string
	var part strings.Builder
	for line := range strings.Lines(source) {
		if strings.TrimSpace(line) == "" {
			parts = append(parts, part.String())
			part.Reset()
			continue
		}
		part.WriteString(line)
	}
	return title, paragraphs(append(parts, part.String()))
}

// shorten cuts a text to most characters, the last of them an ellipsis.
func shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return strings.TrimSpace(string([]rune(s)[:most-1])) + "…"
}
