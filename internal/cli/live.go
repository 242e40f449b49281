package cli

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// view is a part of a terminal that is redrawn in place.
type view struct {
	s     *session
	drawn int // the number of lines of the last drawing
}

// live returns a view, or nil if the output does not go to a terminal that can show one.
func (s *session) live() *view {
	if !s.Terminal || s.get("TERM") == "dumb" {
		return nil
	}
	return &view{s: s}
}

// draw replaces the last drawing. It cuts lines at the edge of the terminal, because a wrapped
// line would take more rows than it counts.
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
	_ = v.s.write(out.String()) // If the output is closed, the next drawing fails as well.
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
