package docpipeline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/net/html"
)

// Text is an extracted document.
type Text struct {
	Name     string `json:"name"`
	Title    string `json:"title"`
	Language string `json:"language"`
	Body     string `json:"body"`
}

// Extract takes the text out of a .txt or .html document.
func Extract(name string, data []byte, language string) (Text, error) {
	text := Text{Name: name, Language: language}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".txt":
		text.Body = squeeze(string(data))
		text.Title, _, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
	case ".html", ".htm":
		if err := text.fromHTML(data); err != nil {
			return Text{}, err
		}
	default:
		return Text{}, fmt.Errorf("%w: %q is neither text nor HTML", ErrPermanent, name)
	}
	if text.Body == "" {
		return Text{}, fmt.Errorf("%w: %q holds no text", ErrPermanent, name)
	}
	if text.Title = squeeze(text.Title); text.Title == "" {
		text.Title = name
	}
	return text, nil
}

// fromHTML reads title and text; scripts, styles and comments are neither.
func (t *Text) fromHTML(data []byte) error {
	tokens := html.NewTokenizer(bytes.NewReader(data))
	var body strings.Builder
	skip, title := "", false
	for {
		switch tokens.Next() {
		case html.ErrorToken:
			if err := tokens.Err(); !errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: HTML: %w", ErrPermanent, err)
			}
			t.Body = squeeze(body.String())
			return nil
		case html.StartTagToken:
			name, _ := tokens.TagName()
			switch tag := string(name); tag {
			case "script", "style", "noscript":
				skip = tag
			case "title":
				title = true
			}
			body.WriteByte(' ')
		case html.EndTagToken:
			name, _ := tokens.TagName()
			if string(name) == skip {
				skip = ""
			}
			title = title && string(name) != "title"
			body.WriteByte(' ')
		case html.TextToken:
			switch text := string(tokens.Text()); {
			case skip != "":
			case title:
				t.Title += text
			default:
				body.WriteString(text)
			}
		case html.SelfClosingTagToken, html.CommentToken, html.DoctypeToken:
		}
	}
}

// squeeze makes one space of each run of white space.
func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// extractFile is the extract service's work on files.
func extractFile(from, to, language string) error {
	data, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: there is no document %s", ErrPermanent, filepath.Base(from))
	}
	if err != nil {
		return fmt.Errorf("read a document: %w", err)
	}
	text, err := Extract(filepath.Base(from), data, language)
	if err != nil {
		return err
	}
	return writeJSON(to, text)
}
