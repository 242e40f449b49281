package commands_test

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"testing"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

// vectorFile is testdata/canonicaljson/vectors.json.
type vectorFile struct {
	Accepted []struct{ Why, Input, Canonical, SHA256 string }
	Refused  []struct {
		Why, Input, Pointer string
		InputHex            string        `json:"input_hex"`
		Code                apierror.Code // Empty means invalid_json.
	}
	Commands []struct{ Why, Command, Canonical, SHA256 string }
}

func readVectors(tb testing.TB) vectorFile {
	tb.Helper()
	text := musttest.ReadFile(tb, "../../testdata/canonicaljson/vectors.json")
	var vectors vectorFile
	musttest.NoError(tb, json.Unmarshal(text, &vectors))
	return vectors
}

func TestVectorsThatAreAccepted(t *testing.T) {
	t.Parallel()
	for _, vector := range readVectors(t).Accepted {
		t.Run(vector.Why, func(t *testing.T) {
			t.Parallel()
			tree, err := commands.ParseJSON([]byte(vector.Input))
			if err != nil {
				t.Fatalf("Parse(%.100s): %v", vector.Input, err)
			}
			if got := string(commands.AppendCanonical(nil, tree)); got != vector.Canonical {
				t.Errorf("canonical form\n got %.200s\nwant %.200s", got, vector.Canonical)
			}
			if got := commands.HashCanonical(tree); got != vector.SHA256 {
				t.Errorf("SHA-256\n got %s\nwant %s", got, vector.SHA256)
			}
		})
	}
}

func TestVectorsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, vector := range readVectors(t).Refused {
		t.Run(vector.Why, func(t *testing.T) {
			t.Parallel()
			input := []byte(vector.Input)
			if vector.InputHex != "" {
				var err error
				if input, err = hex.DecodeString(vector.InputHex); err != nil {
					t.Fatal(err)
				}
			}
			tree, err := commands.ParseJSON(input)
			if err == nil {
				t.Fatalf("Parse(%.100q) = %.100v, want an error", input, tree)
			}
			fault := apierror.From(err)
			want := cmp.Or(vector.Code, apierror.InvalidJSON)
			if fault.Code != want || len(fault.Errors) != 1 {
				t.Fatalf("Parse(%.100q): %v, want one violation under %s", input, err, want)
			}
			if got := fault.Errors[0]; got.Pointer != vector.Pointer || got.Message == "" {
				t.Errorf("Parse(%.100q) points at %q (%s), want %q", input, got.Pointer, got.Message, vector.Pointer)
			}
		})
	}
}

// The command of the wire contract is among the vectors, with its hash.
func TestVectorOfTheContract(t *testing.T) {
	t.Parallel()
	const want = "87f4dbde31c2126a9b8350ed9744f4b64a3bbd83ef7e2b6c02e06e131f761748"
	vector := readVectors(t).Commands[0]
	tree := musttest.Make(t, commands.ParseJSON, []byte(vector.Command))
	command := tree.(map[string]any)
	delete(command, "correlation_id")
	if got := string(commands.AppendCanonical(nil, tree)); got != vector.Canonical {
		t.Errorf("canonical form\n got %s\nwant %s", got, vector.Canonical)
	}
	if got := commands.HashCanonical(tree); got != want || vector.SHA256 != want {
		t.Errorf("SHA-256 is %s, in the vectors %s, want %s", got, vector.SHA256, want)
	}
}
