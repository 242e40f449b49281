package commands_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/commands"
)

func mustParseJSON(tb testing.TB, text string) any {
	tb.Helper()
	tree, err := commands.ParseJSON([]byte(text))
	if err != nil {
		tb.Fatalf("Parse(%s): %v", text, err)
	}
	return tree
}

func TestTextsThatMeanTheSameHashTheSame(t *testing.T) {
	t.Parallel()
	for _, same := range [][]string{
		{`1.5`, `1.50`, `15e-1`, `0.15e1`, `150E-2`, `1.5e+0`},
		{`0`, `-0`, `0.0`, `-0e9`, `0E-7`},
		{`1e2`, `100`, `100.0`, `10e1`, `1000e-1`},
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, ` { "b" : 2.0 , "c" : null , "\u0061" : 1 } `},
		{`"é/"`, `"\u00e9\/"`},
	} {
		first := commands.HashCanonical(mustParseJSON(t, same[0]))
		for _, text := range same[1:] {
			if commands.HashCanonical(mustParseJSON(t, text)) != first {
				t.Errorf("%s and %s mean the same but hash differently", same[0], text)
			}
		}
	}
}

func TestTextsThatDifferHashDifferently(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, text := range []string{
		`9007199254740992`, `9007199254740993`, `1`, `-1`, `0.1`, `0.10000000000000000000001`, `1e300`, `1e301`,
		`"1"`, `""`, `null`, `false`, `[]`, `{}`, `[null]`, `[[]]`, `[{}]`, `[1,2]`, `[2,1]`, `[1]`, `[1,null]`,
		`"é"`, `"e\u0301"`, `"É"`, `" é"`, `{"a":1}`, `{"A":1}`, `{"a":"1"}`, `{"a":{}}`, `{"a":[]}`, `{"a":false}`,
	} {
		hash := commands.HashCanonical(mustParseJSON(t, text))
		if other, taken := seen[hash]; taken {
			t.Errorf("%s and %s differ but hash the same", other, text)
		}
		seen[hash] = text
	}
}

func TestAppendExtendsItsBuffer(t *testing.T) {
	t.Parallel()
	got := commands.AppendCanonical([]byte("before "), mustParseJSON(t, `[1.0]`))
	if string(got) != "before [1]" {
		t.Errorf("Append = %s", got)
	}
}

func TestAppendSortsObjectsOfAnySize(t *testing.T) {
	t.Parallel()
	members := map[string]any{}
	var want []string
	for i := range 40 {
		name := fmt.Sprintf("k%02d", i)
		members[name] = json.Number("1")
		want = append(want, fmt.Sprintf("%q:1", name))
	}
	if got := string(commands.AppendCanonical(nil, members)); got != "{"+strings.Join(want, ",")+"}" {
		t.Errorf("Append = %s", got)
	}
}

func TestAppendPanicsOnValuesThatParseCannotReturn(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{
		"a float":             1.5,
		"a deep int":          map[string]any{"a": []any{1}},
		"a string not UTF-8":  "\xff",
		"a name not UTF-8":    map[string]any{"\xff": true},
		"a number too long":   json.Number("1e1000"),
		"a struct":            struct{}{},
		"raw JSON":            json.RawMessage("1"),
		"a pointer to a tree": new(any),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Errorf("Append accepted %#v", value)
				}
			}()
			commands.AppendCanonical(nil, value)
		})
	}
}

func TestAppendAcceptsNumbersInAnySpelling(t *testing.T) {
	t.Parallel()
	if got := string(commands.AppendCanonical(nil, json.Number("-120.50e-1"))); got != "-12.05" {
		t.Errorf("Append = %s, want -12.05", got)
	}
}

func BenchmarkParseAndHash(b *testing.B) {
	command := []byte(readVectors(b).Commands[0].Command)
	b.ReportAllocs()
	b.SetBytes(int64(len(command)))
	for b.Loop() {
		tree, err := commands.ParseJSON(command)
		if err != nil {
			b.Fatal(err)
		}
		commands.HashCanonical(tree)
	}
}
