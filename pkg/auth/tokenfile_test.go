package auth_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/strictyaml"
)

func TestNewToken(t *testing.T) {
	t.Parallel()
	one, other := auth.NewToken(), auth.NewToken()
	if one == other {
		t.Error("two tokens are the same")
	}
	if !regexp.MustCompile(`^lucius_[a-z2-7]{59}$`).MatchString(one) {
		t.Errorf("%s does not match the pattern of scanners", one)
	}
	if hash := auth.HashToken("abc"); hash != "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("the hash of abc is %s", hash)
	}
}

// put writes a file and returns its path.
func put(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	overwrite(t, path, text)
	return path
}

func overwrite(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// loadNow uses the files of a File or of Certificates as they are now.
func loadNow(files interface {
	Look() (string, func() ([]any, error))
}) error {
	_, use := files.Look()
	_, err := use()
	return err
}

// callers returns how many callers a valid file has.
func callers(file *auth.File) int {
	_, use := file.Look()
	news, _ := use()
	return news[1].(int)
}

// hash is the hash of some token.
func hash(text string) string { return auth.HashToken(text) }

func TestOpenFile_NamesEveryMistakeWithItsLine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"empty":            {"", []string{"tokens.yaml: is empty"}},
		"comment alone":    {"# nothing\n", []string{"tokens.yaml: is empty"}},
		"two documents":    {"version: 1\n---\nversion: 1\n", []string{"tokens.yaml: has more than one document; a file holds one"}},
		"not UTF-8":        {"version: \xff\n", []string{"tokens.yaml: is not UTF-8"}},
		"a text":           {"hello\n", []string{"tokens.yaml:1: must be a mapping with the keys version, callers", "tokens.yaml:1: version is required", "tokens.yaml:1: callers must name at least one caller"}},
		"a broken quote":   {"version: 1\ncallers: \"\n", []string{"tokens.yaml:2: is not valid YAML: could not find end character of double-quoted text"}},
		"a key twice":      {"version: 1\nversion: 1\n", []string{`tokens.yaml:2: is not valid YAML: mapping key "version" already defined at [1:1]`}},
		"another version":  {"version: 2\n" + strings.TrimPrefix(head, "version: 1\n") + stanza("a", "a", "{role: read, tenants: [t]}"), []string{`tokens.yaml:1: version is "2" and must be 1`}},
		"no caller":        {"version: 1\ncallers: []\n", []string{"tokens.yaml:2: callers must not be empty"}},
		"callers are null": {"version: 1\ncallers:\n", []string{"tokens.yaml:2: callers must name at least one caller"}},
		"an alias":         {"version: &v 1\ncallers: *v\n", []string{"tokens.yaml:1: version must be a single value", "tokens.yaml:2: callers must be a list"}},
		"services are null": {
			head + stanza("a", "a", "{role: platform, tenants: [t], services: }"),
			[]string{"tokens.yaml:7: callers[0].roles[0].services must not be empty"},
		},
		"all kinds": {`version: 1
users: []
callers:
  - name: a b
    password: secret
    tokens: [lucius_oops, 5, {a: b}]
    roles:
      - role: chef
        tenants: [a]
      - {role: read, tenants: ["*"]}
      - {role: read, tenants: a, services: []}
      - {tenants: "*"}
      - role: submit
        tenants: "*"
        services: [ocr]
      - admin
  - tokens: [` + hash("1") + `, ` + hash("1") + `]
    certificates: ["cn:", "dns:x", "cn:x"]
    roles: []
  - name: c
    certificates: [cn:x]
  - name: c
    roles: [{role: read, tenants: []}, {role: read}]
`, []string{
			`tokens.yaml:2: has the unknown key "users"; known are version, callers`,
			`tokens.yaml:4: callers[0].name is "a b" and must be 1 to 128 of the characters A-Z a-z 0-9 . _ @ / -`,
			`tokens.yaml:5: callers[0] has the unknown key "password"; known are name, tokens, certificates, roles`,
			"tokens.yaml:6: callers[0].tokens[0] must be sha256: and 64 hexadecimal digits, as `lucius token new` prints it",
			"tokens.yaml:6: callers[0].tokens[1] must be sha256: and 64 hexadecimal digits, as `lucius token new` prints it",
			"tokens.yaml:6: callers[0].tokens[2] must be a single value; put it in quotes if it has a colon",
			`tokens.yaml:8: callers[0].roles[0] is not valid: role is "chef" and must be submit, read, platform or admin`,
			`tokens.yaml:10: callers[0].roles[1] is not valid: tenant "*" stands for all and cannot be one of a list`,
			"tokens.yaml:11: callers[0].roles[2].tenants must be a list",
			"tokens.yaml:11: callers[0].roles[2].services must not be empty",
			"tokens.yaml:12: callers[0].roles[3].role is required",
			"tokens.yaml:13: callers[0].roles[4] is not valid: services are only for the role platform",
			"tokens.yaml:16: callers[0].roles[5] must be a mapping with the keys role, tenants, services",
			"tokens.yaml:16: callers[0].roles[5].role is required",
			`tokens.yaml:16: callers[0].roles[5].tenants is required: a list of tenants, or "*" for all`,
			"tokens.yaml:17: callers[1].name is required",
			"tokens.yaml:17: callers[1].tokens[1] is the same as one of callers[1]",
			`tokens.yaml:18: callers[1].certificates[0] is "cn:" and must be cn: and the subject's common name, or uri: and a URI of the subject`,
			`tokens.yaml:18: callers[1].certificates[1] is "dns:x" and must be cn: and the subject's common name, or uri: and a URI of the subject`,
			"tokens.yaml:19: callers[1].roles must not be empty",
			"tokens.yaml:20: callers[2].roles must list at least one role",
			"tokens.yaml:21: callers[2].certificates[0] is the same as one of callers[1]",
			"tokens.yaml:22: callers[3].name is the same as one of callers[2]",
			"tokens.yaml:22: callers[3].tokens is required, or else certificates",
			"tokens.yaml:23: callers[3].roles[0].tenants must not be empty",
			`tokens.yaml:23: callers[3].roles[1].tenants is required: a list of tenants, or "*" for all`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := put(t, "tokens.yaml", test.text)
			_, err := auth.OpenFile(path)
			if diff := cmp.Diff(test.want, mistakes(t, err, filepath.Dir(path))); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

// mistakes returns the lines of an error that joins [strictyaml.Error]s, without the folder.
func mistakes(t *testing.T, err error, dir string) []string {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("answered %v, want joined errors", err)
	}
	var lines []string
	for _, one := range joined.Unwrap() {
		if _, ok := errors.AsType[*strictyaml.Error](one); !ok {
			t.Errorf("%v is not a strictyaml.Error", one)
		}
		lines = append(lines, strings.TrimPrefix(one.Error(), dir+string(filepath.Separator)))
	}
	return lines
}

func TestOpenFile_DoesNotQuoteWhatMayBeASecret(t *testing.T) {
	t.Parallel()
	token, role := auth.NewToken(), "{role: read, tenants: [t]}"
	for name, text := range map[string]string{
		"instead of its hash": head + strings.Replace(stanza("a", "a", role), hash("a"), token, 1),
		"as the name":         head + stanza(token, "a", role),
		"within the name":     head + stanza("'"+token+" '", "a", role),
		"as a key":            head + stanza("a", "a", role) + token + ": 1\n",
		"as a role":           head + stanza("a", "a", "{role: "+token+", tenants: [t]}"),
	} {
		if _, err := auth.OpenFile(put(t, "tokens.yaml", text)); err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("%s: answered %v", name, err)
		}
	}
}

func TestOpenFile_Refuses(t *testing.T) {
	t.Parallel()
	if _, err := auth.OpenFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for _, path := range []string{os.DevNull, t.TempDir()} {
		if _, err := auth.OpenFile(path); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	large := put(t, "tokens.yaml", "version: 1\n#"+strings.Repeat("x", 4<<20))
	if _, err := auth.OpenFile(large); err == nil || !strings.Contains(err.Error(), "is larger than 4194304 bytes") {
		t.Errorf("a large file: %v", err)
	}
	list := put(t, "tokens.yaml", "version: 1\ncallers:\n  - {name: a, tokens: ["+many(hash("x"), 17)+"], roles: [{role: read, tenants: [t]}]}\n")
	if _, err := auth.OpenFile(list); err == nil || !strings.Contains(err.Error(), "tokens holds 17 entries; at most 16 are allowed") {
		t.Errorf("a long list: %v", err)
	}
}

// stanza returns the lines of a caller in a token file.
func stanza(name, token, role string) string {
	return "  - name: " + name + "\n    tokens:\n      - " + hash(token) + "\n    roles:\n      - " + role + "\n"
}

const head = "version: 1\ncallers:\n"

func TestFile_Reload(t *testing.T) {
	t.Parallel()
	first, second := auth.NewToken(), auth.NewToken()
	path := put(t, "tokens.yaml", head+stanza("ci", first, "{role: read, tenants: [a]}"))
	file, err := auth.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before := file.InUse()
	if seen, _ := file.Look(); seen != before {
		t.Error("the file on disk is not the one in use")
	}
	overwrite(t, path, head+stanza("cd", second, "{role: read, tenants: [a]}")+stanza("ce", "x", `{role: admin, tenants: "*"}`))
	if seen, _ := file.Look(); seen == before || file.InUse() != before {
		t.Error("the digest does not show the change")
	}
	if name := nameFor(file, first); name != "ci" {
		t.Errorf("before the reload the token is that of %q", name)
	}
	if err := loadNow(file); err != nil {
		t.Fatal(err)
	}
	if seen, _ := file.Look(); seen != file.InUse() {
		t.Error("after the reload the file on disk is not the one in use")
	}
	if nameFor(file, first) != "" || nameFor(file, second) != "cd" || callers(file) != 2 {
		t.Errorf("after the reload the tokens are of %q and %q", nameFor(file, first), nameFor(file, second))
	}
}

func TestFile_ABadFileLeavesTheOldOneInUse(t *testing.T) {
	t.Parallel()
	token := auth.NewToken()
	path := put(t, "tokens.yaml", head+stanza("ci", token, "{role: read, tenants: [a]}"))
	file, err := auth.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, head+stanza("ci", token, "{role: chef, tenants: [a]}"))
	if err := loadNow(file); err == nil || nameFor(file, token) != "ci" {
		t.Errorf("a bad file: %v, the token is that of %q", err, nameFor(file, token))
	}
	digest, _ := file.Look()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := loadNow(file); !errors.Is(err, fs.ErrNotExist) || nameFor(file, token) != "ci" {
		t.Errorf("no file: %v, the token is that of %q", err, nameFor(file, token))
	}
	if seen, _ := file.Look(); seen == digest {
		t.Error("the digest does not show that the file is gone")
	}
}

func FuzzOpenFile(f *testing.F) {
	f.Add(head + stanza("ci", "x", `{role: platform, tenants: "*", services: [a]}`))
	f.Add("a: !!tag\n? - b\n: *c\n")
	f.Add("version: 1\ncallers: [{name: &a b, roles: [!!map {}]}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := auth.OpenFile(put(t, "tokens.yaml", text))
		if err == nil && callers(file) == 0 {
			t.Error("a file without callers was accepted")
		}
	})
}
