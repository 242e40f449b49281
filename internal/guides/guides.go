package guides

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Verb says what is done with a block.
type Verb string

// The verbs. The package comment describes each.
const (
	Run    Verb = "run"
	Serve  Verb = "serve"
	File   Verb = "file"
	PartOf Verb = "part of"
	Prints Verb = "prints"
	NotRun Verb = "not run"
	Stop   Verb = "stop" // no block: the last one that was started is ended
	Ignore Verb = ""     // text for readers
)

// Block is a fenced block of a document, or the hidden lines of a comment.
type Block struct {
	Line     int // of its fence or comment, from 1
	Language string
	Verb     Verb
	Argument string
	Text     string
}

// Database is the URL that stands for the database of a document.
const Database = "postgres://lucius:password@db:5432/lucius?sslmode=verify-full" //nolint:gosec // It is an example.

// InAClone reports whether the document is run in a copy of the repository.
func InAClone(document string) bool { return strings.HasPrefix(document, "<!-- in a clone -->\n") }

// WithPostgreSQL reports whether the document needs a database.
func WithPostgreSQL(document string) bool {
	return strings.HasPrefix(document, "<!-- with PostgreSQL -->\n")
}

var (
	directive = regexp.MustCompile(`^<!-- (run|serve|file|part of|prints|not run|stop)(?:: (\S.*))? -->$`)
	fence     = regexp.MustCompile("^```+")
	hidden    = regexp.MustCompile(`^<!-- hidden(?: (serve)(?:: (\S.*))?)?$`)
	// proseLanguages are those of blocks for people: they need no comment.
	proseLanguages = []string{"", "text"}
)

// Parse returns the blocks of a document in their order. The error names the line of a
// block that neither runs nor says why not.
func Parse(document string) ([]Block, error) {
	var blocks []Block
	var verb, argument string
	lines := strings.Split(document, "\n")
	for i := 0; i < len(lines); i++ {
		line, number := strings.TrimSpace(lines[i]), i+1
		end := fence.FindString(line)
		if lines := hidden.FindStringSubmatch(line); lines != nil {
			end, verb, argument = "-->", cmp.Or(lines[1], string(Run)), lines[2]
		}
		switch comment := directive.FindStringSubmatch(line); {
		case comment != nil && Verb(comment[1]) == Stop:
			blocks = append(blocks, Block{Line: number, Verb: Stop})
		case comment != nil:
			verb, argument = comment[1], comment[2]
		case end != "":
			indent := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], " "))]
			block := Block{Line: number, Verb: Verb(verb), Argument: argument}
			if language := strings.Fields(strings.Trim(line, "`")); end != "-->" && len(language) > 0 {
				block.Language = language[0]
			} else if end == "-->" {
				block.Language = "sh"
			}
			for i++; i < len(lines) && strings.TrimSpace(lines[i]) != end; i++ {
				block.Text += strings.TrimPrefix(lines[i], indent) + "\n"
			}
			if err := block.complete(verb != ""); err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
			blocks = append(blocks, block)
			verb, argument = "", ""
		case line != "" && verb != "":
			return nil, fmt.Errorf("line %d: no block follows the comment %q", number, verb)
		}
	}
	return blocks, nil
}

// complete sets the verb of a block without a comment, and checks that the block can be
// handled.
func (b *Block) complete(told bool) error {
	shell := b.Language == "sh"
	runs := shell || b.Language == "sql"
	switch {
	case !told && runs:
		b.Verb = Run
	case !told && !slices.Contains(proseLanguages, b.Language):
		return fmt.Errorf("say in a comment before the block of %s how it is checked, as internal/guides/doc.go describes", b.Language)
	case b.Verb == Run && !runs, b.Verb == Serve && !shell:
		return fmt.Errorf("a block of %s cannot be run: write it to a file", b.Language)
	case b.Argument == "" && slices.Contains([]Verb{File, PartOf, NotRun}, b.Verb):
		return fmt.Errorf("the comment %q needs an argument", b.Verb)
	}
	return nil
}

var (
	spaces      = regexp.MustCompile(`[ \t]+`)
	indentation = regexp.MustCompile(`(?m)^[ \t]+`)
)

// IsIn reports whether the block is a part of the text. Indentation does not count.
func (b *Block) IsIn(text string) bool {
	return strings.Contains(indentation.ReplaceAllString(text, ""), indentation.ReplaceAllString(b.Text, ""))
}

// Matches reports whether the block is a part of what was printed: the same lines, with …
// for anything within a line or, alone on its line, for any lines. The width of blanks
// does not count.
func (b *Block) Matches(printed string) bool {
	lines := strings.Split(strings.TrimRight(b.Text, "\n"), "\n")
	for i, line := range lines {
		line = spaces.ReplaceAllString(strings.TrimSpace(line), " ")
		if line == "…" {
			lines[i] = `(?s:.*)`
			continue
		}
		lines[i] = strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")
	}
	pattern := regexp.MustCompile(`(?m)^ ?` + strings.Join(lines, ` ?\n ?`) + ` ?$`)
	return pattern.MatchString(spaces.ReplaceAllString(printed, " "))
}
