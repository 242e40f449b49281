package diagnosis

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/lucius-project/lucius/api"
)

// The characters of an error code and of a message that lists show. Workers choose both, and
// the page of a job has them in full.
const (
	BriefCode    = 48
	BriefMessage = 240
)

// Duration formats a time span in its two largest units.
func Duration(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return two(d, time.Minute, "min", time.Second, "s")
	case d < 48*time.Hour:
		return two(d, time.Hour, "h", time.Minute, "min")
	default:
		return two(d, 24*time.Hour, "d", time.Hour, "h")
	}
}

func two(d, large time.Duration, name string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d %s", d/large, name)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf(" %d %s", rest, smallName)
	}
	return text
}

// Seconds returns the duration of that many seconds.
func Seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Number formats a number with separators of thousands. One below ten may have a decimal.
func Number(value any) string {
	if f, ok := value.(float64); ok {
		if f < 10 && f != math.Trunc(f) {
			return strconv.FormatFloat(f, 'f', 1, 64)
		}
		value = int64(math.Round(f))
	}
	digits := fmt.Sprint(value)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Counted writes a number with what it counts.
func Counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Number(n) + " " + many
}

// Percent formats a share, from 0 to 1.
func Percent(share float64) string {
	if share > 0 && share < 0.1 {
		return strconv.FormatFloat(100*share, 'f', 1, 64) + " %"
	}
	return strconv.Itoa(int(math.Round(100*share))) + " %"
}

// Brief shortens a text to at most that many characters.
func Brief(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// ShortID shortens an id to its beginning and end.
func ShortID(id string) string {
	if len(id) <= 16 {
		return id
	}
	return id[:8] + "…" + id[len(id)-4:]
}

// Command is a command line of the program, with what a shell would read otherwise in
// quotation marks.
func Command(verb string, args ...string) string {
	words := []string{"lucius", verb}
	for _, arg := range args {
		words = append(words, Quoted(arg))
	}
	return strings.Join(words, " ")
}

// CommandWith is a command line with the flags that have a value. A flag without a name is an
// argument.
func CommandWith(verb string, flags ...any) string {
	var args []string
	for i := 0; i+1 < len(flags); i += 2 {
		name, value := fmt.Sprint(flags[i]), fmt.Sprint(flags[i+1])
		if name == "" {
			args = append(args, value)
		} else {
			args = append(args, Flag(name, value)...)
		}
	}
	return Command(verb, args...)
}

// Quoted is a word as a shell needs it. Control characters are escaped as Bash and Zsh read
// them: a terminal would act on them when the word is pasted.
func Quoted(word string) string {
	if strings.ContainsFunc(word, unicode.IsControl) {
		var out strings.Builder
		for _, c := range []byte(word) {
			if c < ' ' || c > '~' || c == '\'' || c == '\\' {
				fmt.Fprintf(&out, `\x%02x`, c)
				continue
			}
			out.WriteByte(c)
		}
		return "$'" + out.String() + "'"
	}
	if word == "" || strings.ContainsFunc(word, needsQuotes) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

func needsQuotes(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.:/,@", r)
}

// Flag returns a flag and its value, nothing if that is empty.
func Flag(name, value string) []string {
	if value == "" {
		return nil
	}
	return []string{"--" + name, value}
}

// ClockChange says what a change of clocks does to an occurrence.
func ClockChange(change api.ClockChange) string {
	switch change {
	case api.ClockChangeMoved:
		return "clocks skip the time; the first instant after it"
	case api.ClockChangeFirstOfTwo:
		return "clocks show the time twice; the first time"
	case api.ClockChangeSecondOfTwo:
		return "clocks show the time twice; the second time"
	case api.ClockChangeChanged:
		return "clocks have changed"
	}
	return ""
}
