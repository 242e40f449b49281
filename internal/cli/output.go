package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/spf13/cobra"
	eastasian "golang.org/x/text/width"
)

// Output is the form in which a command prints its answer: table, json or yaml. It is the
// value of the flag -o. The zero value is table.
type Output string

// Register adds the flag to a command and those below it.
func (o *Output) Register(cmd *cobra.Command) {
	*o = "table"
	cmd.PersistentFlags().StringVarP((*string)(o), "output", "o", "table", "table, json or yaml")
	completeWords(cmd, "output", "table", "json", "yaml")
}

// Check returns an error if there is no such form.
func (o *Output) Check() error {
	if *o != "table" && *o != "json" && *o != "yaml" {
		return usagef("--output is %q, it must be table, json or yaml", string(*o))
	}
	return nil
}

// Print prints the value as JSON or YAML, or what it is for people, which the function writes.
func (o *Output) Print(w io.Writer, value any, people func(w io.Writer)) error {
	var text bytes.Buffer
	if *o == "table" || *o == "" {
		people(&text)
	} else if err := o.encode(&text, value); err != nil {
		return err
	}
	if _, err := w.Write(bytes.Map(Visible, text.Bytes())); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// encode writes the value as JSON or YAML.
func (o *Output) encode(text *bytes.Buffer, value any) error {
	encoder := json.NewEncoder(SafeJSON{text})
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	if *o == "json" {
		return nil
	}
	var members any
	if err := yaml.UnmarshalWithOptions(text.Bytes(), &members, yaml.UseOrderedMap()); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	document, err := yaml.ValueToNode(members)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	ast.Walk(quoter{}, document)
	text.Reset()
	_, _ = fmt.Fprintln(text, document) // It does not fail.
	return nil
}

// quoter quotes the strings of a YAML document that have control characters, which the encoder
// writes as they are. Line breaks, and tabs next to them, may stay in a value: it is a block.
type quoter struct{}

// Visit implements [ast.Visitor].
func (q quoter) Visit(node ast.Node) ast.Visitor {
	switch n := node.(type) {
	case *ast.MappingValueNode:
		if key, ok := n.Key.(*ast.StringNode); ok && strings.Contains(key.Value, "\n") {
			key.Value = strconv.Quote(key.Value)
		}
	case *ast.StringNode:
		inLine := !strings.Contains(n.Value, "\n")
		if strings.ContainsFunc(n.Value, func(r rune) bool { return isControl(r) || r == '\t' && inLine }) {
			n.Value = strconv.Quote(n.Value) // Go's escapes are also YAML's.
		}
	}
	return q
}

// SafeJSON writes JSON texts, each in one call, with escapes for the control characters from U+007F
// on, which can only be in strings. An encoder has escaped those before.
type SafeJSON struct{ io.Writer }

// Write implements [io.Writer].
func (s SafeJSON) Write(text []byte) (int, error) {
	escaped := func(r rune) bool { return r >= '\x7f' && isControl(r) }
	if !bytes.ContainsFunc(text, escaped) {
		return s.Writer.Write(text)
	}
	var out bytes.Buffer
	for _, r := range string(text) {
		if escaped(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	_, err := s.Writer.Write(out.Bytes())
	return len(text), err
}

// show prints the server's answer: as JSON or YAML in the API's own form, or as text for
// people, which the function writes.
func show[T any](s *session, answer T, people func(p *page, answer T)) error {
	if s.output != "table" {
		return s.encode(answer)
	}
	return s.write(render(s, answer, people))
}

// render returns the text of an answer for people.
func render[T any](s *session, answer T, people func(p *page, answer T)) string {
	sanitize(reflect.ValueOf(&answer).Elem())
	p := s.page()
	people(p, answer)
	return p.String()
}

// encode prints the value as JSON or YAML.
func (s *session) encode(value any) error {
	return s.output.Print(s.Stdout, value, nil)
}

// write prints text.
func (s *session) write(text string) error {
	if _, err := io.WriteString(s.Stdout, text); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// page is text for people.
type page struct {
	strings.Builder

	now     time.Time
	colours bool
}

func (s *session) page() *page { return &page{now: s.now(), colours: s.colours()} }

// line writes a line.
func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// fields writes pairs of names and values, one per line. It leaves out pairs without a value.
func (p *page) fields(pairs ...string) {
	var rows [][]string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{pairs[i], pairs[i+1]})
		}
	}
	p.table(nil, rows)
}

// table writes rows in columns of equal width, after a header if there is one.
func (p *page) table(header []string, rows [][]string) {
	if header != nil {
		rows = append([][]string{header}, rows...)
	}
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
		}
	}
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-width(cell)+2)
			if n == 0 && header != nil {
				cell = p.style(bold, cell)
			}
			line.WriteString(cell + padding)
		}
		p.line("%s", strings.TrimRight(line.String(), " "))
	}
}

// more writes that a list was cut at --limit, if it was.
func (p *page) more(cut bool, shown int) {
	if cut {
		p.line("%s", p.style(faint, fmt.Sprintf("There may be more than these %d: use --limit.", shown)))
	}
}

// omitted writes that a list lacks jobs of some tenants, if it does.
func (p *page) omitted(tenants bool) {
	if tenants {
		p.line("%s", p.style(faint, "Of more than 1,000 tenants, the list has the first 1,000 by name: use --tenant."))
	}
}

// style is a colour or weight: a parameter of SGR in ECMA-48.
type style string

const (
	bold   style = "1"
	faint  style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

// style returns the text in the style, if colours are shown.
func (p *page) style(as style, text string) string {
	if !p.colours || text == "" {
		return text
	}
	return "\x1b[" + string(as) + "m" + text + "\x1b[0m"
}

// state returns the state of a job or a step in its colour.
func (p *page) state(state string) string {
	switch state {
	case "SUCCEEDED":
		return p.style(green, state)
	case "FAILED_FINAL":
		return p.style(red, state)
	case "QUEUED", "FAILED_RETRY", "PAUSED", "PAUSING", "CANCELLING":
		return p.style(yellow, state)
	case "CANCELLED", "PENDING":
		return p.style(faint, state)
	}
	return p.style(cyan, state)
}

// styled matches the control sequences that [page.style] adds.
var styled = regexp.MustCompile("\x1b\\[[0-9]+m")

// width returns how many columns of a terminal the text takes.
func width(text string) (columns int) {
	for _, r := range styled.ReplaceAllString(text, "") {
		columns += cells(r)
	}
	return columns
}

// cells returns how many columns of a terminal a character takes: none if it combines with the
// one before it, and two if it is East Asian or an emoji.
func cells(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= minWide:
		if kind := eastasian.LookupRune(r).Kind(); kind == eastasian.EastAsianWide || kind == eastasian.EastAsianFullwidth {
			return 2
		}
	}
	return 1
}

// minWide is the first character that takes two columns.
const minWide = 0x1100

// ago says how long ago a time was. It returns "" for the zero time.
func (p *page) ago(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	if past := p.now.Sub(at); past >= time.Second {
		return short(past) + " ago"
	} else if past > -time.Second {
		return "just now"
	}
	return p.until(at)
}

// until says how far away a future time is. It returns "" for the zero time, and "now" for one
// that has passed.
func (p *page) until(at time.Time) string {
	switch left := at.Sub(p.now); {
	case at.IsZero():
		return ""
	case left < time.Second:
		return "now"
	default:
		return "in " + short(left)
	}
}

// short formats a duration in its largest unit and, if that number is small, the next one.
func short(d time.Duration) string {
	second, minute, hour := time.Second, time.Minute, time.Hour
	switch {
	case d < minute:
		return fmt.Sprintf("%ds", d/second)
	case d < 10*minute && d%minute >= second:
		return fmt.Sprintf("%dm %ds", d/minute, d%minute/second)
	case d < hour:
		return fmt.Sprintf("%dm", d/minute)
	case d < 10*hour && d%hour >= minute:
		return fmt.Sprintf("%dh %dm", d/hour, d%hour/minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

// sanitize replaces control characters in all strings of a value. Otherwise a worker's error
// message could move the cursor, and one with several lines would break a table.
func sanitize(v reflect.Value) {
	if !v.CanInterface() { // an unexported field, such as those of a time
		return
	}
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(plain(v.String()))
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			sanitize(v.Elem())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			sanitize(field)
		}
	case reflect.Slice:
		if text, ok := reflect.TypeAssert[json.RawMessage](v); ok && v.CanSet() {
			v.SetBytes([]byte(plain(string(text))))
			return
		}
		for i := range v.Len() {
			sanitize(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			sanitize(value)
			v.SetMapIndex(key, value)
		}
	default: // numbers and booleans
	}
}

// plain returns the text in one line, without control characters.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		return Visible(r)
	}, text)
}

// Visible returns the character, or U+FFFD for a control character.
func Visible(r rune) rune {
	if isControl(r) {
		return unicode.ReplacementChar
	}
	return r
}

// isControl reports whether a terminal may obey the character instead of showing it. Line breaks
// and tabs do no harm.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}
