package diagnosis

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Form is how a time is said.
type Form int

// The forms of times.
const (
	Ago    Form = iota + 1 // "4 min ago", or "in 4 min" for a future time
	In                     // "in 4 min", or "now" for a past time
	For                    // "for 4 min", since that time
	Within                 // "within 4 min"
)

// Piece is a part of a sentence: text, or a time.
type Piece struct {
	Text string
	At   time.Time
	Form Form // Zero for text.
}

// Sentence is text that holds times, which its reader words: they depend on when it is read.
type Sentence []Piece

// With returns the sentence, its times worded by the function.
func (s Sentence) With(word func(form Form, at time.Time) string) string {
	var text strings.Builder
	for i := range s {
		if s[i].Form == 0 {
			text.WriteString(s[i].Text)
		} else {
			text.WriteString(word(s[i].Form, s[i].At))
		}
	}
	return text.String()
}

// holds reports whether the other sentence is a part of this one.
func (s Sentence) holds(other Sentence) bool {
	exact := func(form Form, at time.Time) string { return fmt.Sprint(form, at.UnixMilli()) }
	return strings.Contains(s.With(exact), other.With(exact))
}

// when is a time as an argument of [say].
type when struct {
	form Form
	at   time.Time
}

// say returns a sentence of texts, sentences and times.
func say(parts ...any) (s Sentence) {
	for _, part := range parts {
		switch part := part.(type) {
		case Sentence:
			s = append(s, part...)
		case when:
			s = append(s, Piece{At: part.at, Form: part.form})
		default:
			s = append(s, Piece{Text: fmt.Sprint(part)})
		}
	}
	return s
}

// exactTime matches the times in the server's sentences.
var exactTime = regexp.MustCompile(`(at |by |since |until )?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)`)

// Relative returns a text of the server, with the times in it as times.
func Relative(text string, now time.Time) (s Sentence) {
	end := 0
	for _, match := range exactTime.FindAllStringSubmatchIndex(text, -1) {
		at, err := time.Parse(time.RFC3339Nano, text[match[4]:match[5]])
		if err != nil {
			continue // It only looks like a time.
		}
		preposition := text[match[0]:match[4]]
		before := text[end:match[0]]
		form := Ago
		switch {
		case preposition == "since ":
			form = For
		case preposition == "at " || preposition == "":
		case at.After(now):
			form = Within
		default:
			before += preposition
		}
		s = append(s, say(before, when{form, at})...)
		end = match[1]
	}
	return append(s, say(text[end:])...)
}

// Count returns a number with its noun.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Fault joins an error's code and message.
func Fault(code, message string) string {
	return strings.TrimSuffix(strings.TrimPrefix(code+": "+message, ": "), ": ")
}
