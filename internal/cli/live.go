package cli

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// view is a part of a terminal that is drawn over and over.
type view struct {
	s *session
	// drawn is how many lines the last drawing took.
	drawn int
}

// live returns a view, nil if output does not go to a terminal that can show one.
func (s *session) live() *view {
	if !s.Terminal || s.get("TERM") == "dumb" {
		return nil
	}
	return &view{s: s}
}

// draw replaces what was drawn before. Lines are cut at the edge of the terminal: a
// wrapped one would be counted wrong.
func (v *view) draw(text string) {
	columns, rows := 80, 24
	if v.s.Size != nil {
		columns, rows = v.s.Size()
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	lines = lines[:min(len(lines), max(1, rows-1))]
	var out strings.Builder
	if v.drawn > 0 {
		out.WriteString("\x1b[" + strconv.Itoa(v.drawn) + "F")
	}
	for _, line := range lines {
		out.WriteString(cut(line, columns) + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	v.drawn = len(lines)
	_ = v.s.write(out.String()) // The next drawing, or the end, meets the same error.
}

// cut returns the first columns of a line.
func cut(line string, columns int) string {
	if width(line) <= columns {
		return line
	}
	var out strings.Builder
	for i, used := 0, 0; i < len(line); {
		if mark := styled.FindStringIndex(line[i:]); mark != nil && mark[0] == 0 {
			out.WriteString(line[i : i+mark[1]])
			i += mark[1]
			continue
		}
		r, size := utf8.DecodeRuneInString(line[i:])
		if used += cells(r); used > columns {
			break
		}
		out.WriteString(line[i : i+size])
		i += size
	}
	return out.String() + "\x1b[0m"
}
