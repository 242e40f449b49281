package strictyaml_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/goccy/go-yaml/ast"

	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// A file that cannot be read is an error that names its path; a named pipe is not
// opened, which would wait for its writer.
func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("four"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		if content := strictyaml.Open(path, 4); content.Err != nil || string(content.Text) != "four" {
			t.Errorf("%s: %q, %v", path, content.Text, content.Err)
		}
	}
	missing := filepath.Join(dir, "none")
	if content := strictyaml.Open(missing, 4); !errors.Is(content.Err, fs.ErrNotExist) || !strings.Contains(content.Err.Error(), missing) {
		t.Errorf("a missing file: %v", content.Err)
	}
	for path, want := range map[string]string{file: "is larger than 3 bytes", dir: "is not a regular file"} {
		content := strictyaml.Open(path, 3)
		if content.Err == nil || content.Text != nil || !strings.Contains(content.Err.Error(), path) || !strings.Contains(content.Err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, content.Err, want)
		}
	}
	pipe := fstest.MapFS{"p": {Mode: fs.ModeNamedPipe}}
	if content := strictyaml.Read(pipe, "p", 4); content.Err == nil || !strings.Contains(content.Err.Error(), "is not a regular file (p") {
		t.Errorf("a named pipe: %v", content.Err)
	}
}

// The digest tells apart texts, errors, and where one file ends.
func TestDigest(t *testing.T) {
	t.Parallel()
	text := func(s string) strictyaml.Content { return strictyaml.Content{Text: []byte(s)} }
	seen := map[string]int{}
	for i, contents := range [][]strictyaml.Content{
		{text("ab"), text("c")}, {text("a"), text("bc")}, {text("ab")}, {text("")},
		{{Err: fs.ErrNotExist}}, {{Err: fs.ErrPermission}},
	} {
		digest := strictyaml.Digest(contents...)
		if other, known := seen[digest]; known || digest != strictyaml.Digest(contents...) {
			t.Errorf("contents %d and %d have the digest %s", other, i, digest)
		}
		seen[digest] = i
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: 1\n":                                 "",
		"a: b\n":                                 `1: cannot unmarshal string into Go struct field .A of type int`,
		"a: 1\nb: 2\n":                           `2: unknown field "b"`,
		"steps:\n- retry: {x: {executoin: 1}}\n": `2: steps[0].retry.x.executoin: unknown field "executoin", did you mean "execution"?`,
		"steps:\n- retry: {x: [1]}\n":            `2: steps[0].retry.x: sequence was used where mapping is expected`,
		"steps:\n- {}\n- retrey: {}\n":           `3: steps[1].retrey: unknown field "retrey", did you mean "retry"?`,
		"a: '1\n":                                "1: is not valid YAML: could not find end character of single-quoted text",
		"":                                       "0: is empty",
		"a: 1\n---\na: 1\n":                      "0: has more than one document; a file holds one",
		"a: \xff\n":                              "0: is not UTF-8",
		"l: !x\n0\n  -0":                         "0: is not valid YAML", // The library panics.
		"panic: in the use\n":                    "0: is not valid YAML",
		"a: 1\n# a comment\n":                    "",
		"l: [&x 1, *x, *x]\n":                    "",
		"m: " + strings.Repeat("[", 128) + strings.Repeat("]", 128):    `1: unknown field "m"`,
		"m: " + strings.Repeat("{a: ", 128) + strings.Repeat("}", 128): `1: unknown field "m"`,
		"a: 1\nm: " + strings.Repeat("[", 20_000):                      "2: is nested deeper than 128 levels",
		"m: " + strings.Repeat("{a: ", 129) + strings.Repeat("}", 129): "1: is nested deeper than 128 levels",
		"m:\n  " + strings.Repeat("- ", 20_000) + "1":                  "2: is nested beyond column 1000",
		"m:\n  " + strings.Repeat("? ", 20_000) + "1":                  "2: is nested beyond column 1000",
		bomb(20): "0: has aliases that repeat its values to more than 8388608 bytes",
		bomb(4):  `1: unknown field "b"`,
	} {
		var into struct {
			A     int
			L     []int
			Steps []struct {
				Retry map[string]struct {
					Execution int `yaml:"execution"`
				} `yaml:"retry"`
			}
		}
		fault := strictyaml.Decode([]byte(text), &into, func(ast.Node) error {
			if strings.HasPrefix(text, "panic") {
				panic("in the check")
			}
			return nil
		})
		got := ""
		if fault != nil {
			got = string(rune('0'+fault.Line)) + ": " + fault.Message
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// bomb returns a text whose aliases repeat a value 10 to the power of n times.
func bomb(n int) string {
	text := "b:\n- &a0 1\n"
	for i := range n {
		text += fmt.Sprintf("- &a%d [%s]\n", i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return text
}

func TestError(t *testing.T) {
	t.Parallel()
	for want, fault := range map[string]strictyaml.Error{
		"a.yaml:2: is wrong": {File: "a.yaml", Line: 2, Message: "is wrong"},
		"a.yaml: is wrong":   {File: "a.yaml", Message: "is wrong"},
		"is wrong":           {Message: "is wrong"},
	} {
		if fault.Error() != want {
			t.Errorf("%q, want %q", fault.Error(), want)
		}
	}
	faults := strictyaml.ByLine([]*strictyaml.Error{{Line: 2, Message: "b"}, {Line: 1}, {Line: 2, Message: "c"}})
	if got := errors.Join(faults...).Error(); got != "\nb\nc" {
		t.Errorf("by line: %q", got)
	}
}
