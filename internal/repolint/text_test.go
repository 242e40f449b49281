package repolint_test

import (
	"bytes"
	"regexp"
	"testing"
)

// A file without a final newline breaks `cat`, and the diff that adds the next line also
// changes the last one.
func TestFilesEndWithOneNewline(t *testing.T) {
	t.Parallel()
	for _, f := range readTree(t) {
		switch {
		case len(f.text) == 0:
			t.Errorf("%s is empty: fill it or remove it", f.path)
		case !bytes.HasSuffix(f.text, []byte("\n")):
			t.Errorf("%s does not end with a newline", f.path)
		case bytes.HasSuffix(f.text, []byte("\n\n")):
			t.Errorf("%s ends with blank lines", f.path)
		}
	}
}

// unwanted are words that no file may contain. The patterns are written so that they do not
// match themselves.
var unwanted = []struct {
	name    string
	pattern *regexp.Regexp
	goOnly  bool
	reason  string
}{
	{
		name:    "marks of unfinished work",
		pattern: regexp.MustCompile(`\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b`),
		reason:  "finish it, or open an issue and say in plain words what holds today",
	},
	{
		name:    "excuses",
		pattern: regexp.MustCompile(`(?i)\b(?:for no[w]|not implemente[d]|temporar[y] (?:hack|workaround|solution))\b`),
		goOnly:  true,
		reason:  "code does what its comment promises; what it does not do is not there",
	},
	{
		name:    "skipped tests",
		pattern: regexp.MustCompile(`\b[tb]\.Skip(?:f|Now)?\(`),
		goOnly:  true,
		reason:  "a skipped test proves nothing and looks as if it did",
	},
	{
		name:    "paths of one machine",
		pattern: regexp.MustCompile(`(?:^|[\s"'=:(\x60])(?:/(?:root|home|Users)/[\w.]|[A-Z]:\\Users\\)`),
		reason:  "it works for one person only: use a relative path, t.TempDir or a setting",
	},
	{
		name:    "conflict markers",
		pattern: regexp.MustCompile(`(?m)^(?:<{7}|>{7}) `),
		reason:  "a merge was not finished",
	},
}

func TestFilesAreFreeOf(t *testing.T) {
	t.Parallel()
	files := readTree(t)
	for _, rule := range unwanted {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for _, f := range files {
				if rule.goOnly && (!bytes.HasSuffix([]byte(f.path), []byte(".go")) || f.isGenerated()) {
					continue
				}
				for _, at := range rule.pattern.FindAllIndex(f.text, -1) {
					line := 1 + bytes.Count(f.text[:at[1]], []byte("\n"))
					t.Errorf("%s:%d: %q: %s", f.path, line, bytes.TrimSpace(f.text[at[0]:at[1]]), rule.reason)
				}
			}
		})
	}
}
