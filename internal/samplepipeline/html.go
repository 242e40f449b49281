package samplepipeline

import (
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// fromHTML extracts the title and the visible text. It works on tokens, not on a
// tree: however deep the nesting, it takes one pass and no stack, and broken HTML
// gives some text instead of an error.
func fromHTML(source string) (title, body string) {
	p := page{tokens: html.NewTokenizer(strings.NewReader(source))}
	for p.next() {
	}
	p.endParagraph()
	if title = squeeze(p.title.String()); title == "" {
		title = p.heading
	}
	return title, paragraphs(p.parts)
}

// page is the part of an HTML document that was read so far.
type page struct {
	tokens *html.Tokenizer
	title  strings.Builder
	// titles counts the title elements; only the first one is used.
	titles int
	// heading is the first h1, the title of a page without one.
	heading string
	parts   []string
	part    strings.Builder
	// inTitle and inHeading are true inside the title and the first h1.
	inTitle, inHeading bool
	// hidden is the open element whose content is skipped, and depth how many of its
	// kind are open.
	hidden atom.Atom
	depth  int
}

// next reads one token, and reports whether there was one.
func (p *page) next() bool {
	kind := p.tokens.Next()
	switch kind {
	case html.ErrorToken:
		return false // The only error of a string reader is its end.
	case html.TextToken:
		p.text(string(p.tokens.Text()))
	case html.StartTagToken, html.EndTagToken, html.SelfClosingTagToken:
		name, _ := p.tokens.TagName()
		p.tag(kind, atom.Lookup(name))
	case html.CommentToken, html.DoctypeToken:
	}
	return true
}

// text adds text to the title, the heading or the paragraph.
func (p *page) text(s string) {
	s = clean(s) // Entities may have decoded to characters that clean removes.
	switch {
	case p.hidden != 0:
	case p.inTitle && p.titles > 1:
	case p.inTitle:
		p.title.WriteString(s)
	default:
		p.part.WriteString(s)
	}
}

// tag handles a tag.
func (p *page) tag(kind html.TokenType, name atom.Atom) {
	switch {
	case p.hidden != 0:
		p.inHidden(kind, name)
	case hiding[name]:
		if kind == html.StartTagToken {
			p.hidden, p.depth = name, 1
		}
	case name == atom.Title:
		if p.inTitle = kind == html.StartTagToken; p.inTitle {
			p.titles++
		}
	case name == atom.Td || name == atom.Th:
		p.part.WriteByte(' ')
	case blocks[name]:
		p.endParagraph()
		p.inHeading = name == atom.H1 && kind == html.StartTagToken
	}
}

// inHidden handles a tag inside a hidden element.
func (p *page) inHidden(kind html.TokenType, name atom.Atom) {
	if name != p.hidden {
		return
	}
	switch kind { //nolint:exhaustive // only tags come here, and a self-closing one changes nothing
	case html.StartTagToken:
		p.depth++
	case html.EndTagToken:
		if p.depth--; p.depth == 0 {
			p.hidden = 0
		}
	}
}

// endParagraph ends the paragraph.
func (p *page) endParagraph() {
	part := p.part.String()
	p.part.Reset()
	if p.inHeading && p.heading == "" {
		p.heading = squeeze(part)
	}
	p.parts = append(p.parts, part)
}

// hiding are the elements whose content is not text of the document.
var hiding = atoms(atom.Script, atom.Style, atom.Noscript, atom.Template, atom.Iframe, atom.Object, atom.Svg,
	atom.Math, atom.Canvas, atom.Audio, atom.Video, atom.Nav, atom.Select, atom.Textarea)

// blocks are the elements that start a new paragraph. All others are inline: their
// tags do not separate words.
var blocks = atoms(atom.Address, atom.Article, atom.Aside, atom.Blockquote, atom.Body, atom.Br, atom.Caption,
	atom.Dd, atom.Details, atom.Div, atom.Dl, atom.Dt, atom.Fieldset, atom.Figcaption, atom.Figure, atom.Footer,
	atom.Form, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6, atom.Head, atom.Header, atom.Hr, atom.Html,
	atom.Legend, atom.Li, atom.Main, atom.Ol, atom.P, atom.Pre, atom.Section, atom.Summary, atom.Table,
	atom.Tbody, atom.Tfoot, atom.Thead, atom.Tr, atom.Ul)

func atoms(names ...atom.Atom) map[atom.Atom]bool {
	set := make(map[atom.Atom]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}
