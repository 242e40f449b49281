package repolint_test

import (
	"bytes"
	"regexp"
	"strings"
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
	in      func(file) bool // all files if it is nil
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
		in:      isWritten,
		reason:  "code does what its comment promises; what it does not do is not there",
	},
	{
		name:    "skipped tests",
		pattern: regexp.MustCompile(`\b[tb]\.Skip(?:f|Now)?\(`),
		in:      isWritten,
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
	{
		name: "bounds of a wait",
		pattern: regexp.MustCompile(
			`(?:Now\(\)\.Add|time\.After(?:Func)?|NewTimer|WithTimeout|WithDeadline|DialTimeout)\((?:[^(\n]|\(\))*\btime\.(?:Second|Minute)\b`),
		in:     waits,
		reason: "a slow machine reaches it: wait with internal/waittest, or scale a duration that ends on purpose",
	},
}

// isWritten reports whether the file is Go code that people write.
func isWritten(f file) bool { return strings.HasSuffix(f.path, ".go") && !f.isGenerated() }

var realTests = regexp.MustCompile(`^(?:cmd/lucius|internal/fakeservicebus|internal/guides|pkg/servicebus|sdk/conformance)/\w+_test\.go$`)

// waits reports whether the file has tests that wait for something real, not on virtual time.
func waits(f file) bool {
	return realTests.MatchString(f.path) && !bytes.Contains(f.text, []byte(`"testing/synctest"`))
}

func TestFilesAreFreeOf(t *testing.T) {
	t.Parallel()
	files := readTree(t)
	for _, rule := range unwanted {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for _, f := range files {
				if rule.in != nil && !rule.in(f) {
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
