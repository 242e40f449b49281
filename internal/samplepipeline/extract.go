package samplepipeline

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
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

// clean normalizes text: valid UTF-8 in composed form (NFC), without control
// characters and invisible characters.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\u00ad', r == '\u200b', r == '\u2060', r == '\ufeff': // soft hyphen, byte order mark and the like
			return -1
		case unicode.IsSpace(r):
			return r
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	return norm.NFC.String(s)
}

// squeeze replaces each run of white space by one space and trims the ends.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// paragraphs squeezes the parts and joins the non-empty ones as lines.
func paragraphs(parts []string) string {
	var lines []string
	for _, part := range parts {
		if part = squeeze(part); part != "" {
			lines = append(lines, part)
		}
	}
	return strings.Join(lines, "\n")
}

// terms returns the meaningful words of a text, in lower case and without a plural
// s. Search and index use them.
func terms(text string) []string {
	var found []string
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r)
	})
	for _, word := range words {
		if len(word) > 3 && !strings.HasSuffix(word, "ss") {
			word = strings.TrimSuffix(word, "s")
		}
		if len(word) > 2 && !stopwords[word] {
			found = append(found, word)
		}
	}
	return found
}

// stopwords are common English words in the form that [terms] gives them. Shorter
// ones than these are dropped earlier.
var stopwords = wordSet(`
	about after again all also and any are because been before being but can could did each even every few for
	from had has have her here him his how into it its just less like made make many may more most much must not
	now off one only other our out over own same she should since some still such than that the their them then
	there these they thi this those through too two under until upon very was well were what when where which while
	who why will with would you your`)

func wordSet(words string) map[string]bool {
	set := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		set[word] = true
	}
	return set
}
