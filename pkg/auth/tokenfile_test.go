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

	"github.com/lucius-project/lucius/internal/musttest"
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
	musttest.WriteFile(t, path, text)
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
		"a text":           {"hello\n", []string{"tokens.yaml:1: string was used where mapping is expected"}},
		"a broken quote":   {"version: 1\ncallers: \"\n", []string{"tokens.yaml:2: is not valid YAML: could not find end character of double-quoted text"}},
		"a key twice":      {"version: 1\nversion: 1\n", []string{`tokens.yaml:2: is not valid YAML: mapping key "version" already defined at [1:1]`}},
		"another version":  {"version: 2\n" + strings.TrimPrefix(head, "version: 1\n") + stanza("a", "a", "{role: read, tenants: [t]}"), []string{`tokens.yaml:1: version is "2" and must be 1`}},
		"no caller":        {"version: 1\ncallers: []\n", []string{"tokens.yaml:1: callers must name 1 to 10000 callers"}},
		"callers are null": {"version: 1\ncallers:\n", []string{"tokens.yaml:2: callers: a key or an entry has no value of its own"}},
		"an unknown key":   {"version: 1\nusers: []\n", []string{`tokens.yaml:2: unknown field "users"`}},
		"an unknown key of a caller": {
			head + stanza("a", "a", "{role: read, tenants: [t]}") + "    password: secret\n", []string{`tokens.yaml:8: callers[0].password: unknown field "password"`},
		},
		"an unknown key of a role": {head + stanza("a", "a", "{role: read, tenant: [t]}"), []string{`tokens.yaml:7: callers[0].roles[0].tenant: unknown field "tenant", did you mean "tenants"?`}},
		"an alias":                 {"version: &v 1\ncallers: *v\n", []string{"tokens.yaml:2: callers: a key or an entry has no value of its own"}},
		"services are null": {
			head + stanza("a", "a", "{role: platform, tenants: [t], services: }"), []string{"tokens.yaml:7: callers[0].roles[0].services: a key or an entry has no value of its own"},
		},
		"a token is a mapping": {
			head + "  - name: a\n    tokens: [{a: b}]\n", []string{"tokens.yaml:4: must be a single value; put it in quotes if it has a colon"},
		},
		"a role is a text":   {head + stanza("a", "a", "admin"), []string{"tokens.yaml:7: string was used where mapping is expected"}},
		"tenants are one":    {head + stanza("a", "a", "{role: read, tenants: a}"), []string{"tokens.yaml:7: callers[0].roles[0].tenants: string was used where sequence is expected"}},
		"services are empty": {head + stanza("a", "a", "{role: platform, tenants: [t], services: []}"), []string{"tokens.yaml:3: callers[0] has as roles[0] one that is not valid: services must not be empty"}},
		"a file of all kinds": {manyFaults, []string{
			`tokens.yaml:4: callers[0] has the name "a b", which must be 1 to 128 of the characters A-Z a-z 0-9 . _ @ / -`,
			"tokens.yaml:5: callers[1] must have as tokens[1] sha256: and 64 hexadecimal digits, as `lucius token new` prints it",
			`tokens.yaml:8: callers[2] has as roles[1] one that is not valid: role is "chef" and must be submit, read, platform or admin`,
			`tokens.yaml:11: callers[3] has as roles[0] one that is not valid: tenant "*" stands for all and cannot be one of a list`,
			"tokens.yaml:14: callers[4] has as roles[0] one that is not valid: services are only for the role platform",
			`tokens.yaml:17: callers[5] has as roles[0] one that is not valid: tenants must list at least one tenant, or be "*" for all`,
			`tokens.yaml:20: callers[6] has the name "", which must be 1 to 128 of the characters A-Z a-z 0-9 . _ @ / -`,
			"tokens.yaml:21: callers[7] has as tokens[1] one that is in the file already",
			`tokens.yaml:24: callers[8] has the certificate "cn:", which must be cn: and the subject's common name, or uri: and a URI of the subject`,
			`tokens.yaml:27: callers[9] has the certificate "dns:x", which must be cn: and the subject's common name, or uri: and a URI of the subject`,
			"tokens.yaml:30: callers[10] must have 1 to 100 roles",
			"tokens.yaml:33: callers[11] must have tokens or certificates, at most 16 of each",
			`tokens.yaml:38: callers[13] has the certificate "cn:x", which is in the file already`,
			"tokens.yaml:41: callers[14] has the name of another caller",
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

// manyFaults is a file in which each caller but the one with the certificate cn:x has a fault.
var manyFaults = `version: 1

callers:
  - {name: a b, tokens: [5], roles: [{role: read, tenants: [t]}]}
  - name: b
    tokens: ["` + hash("b") + `", lucius_oops]
    roles: [{role: read, tenants: [t]}]
  - name: c
    tokens: ["` + hash("c") + `"]
    roles: [{role: read, tenants: [t]}, {role: chef, tenants: [a]}]
  - name: d
    tokens: ["` + hash("d") + `"]
    roles: [{role: read, tenants: ["*"]}]
  - name: e
    tokens: ["` + hash("e") + `"]
    roles: [{role: submit, tenants: "*", services: [ocr]}]
  - name: f
    tokens: ["` + hash("f") + `"]
    roles: [{role: read}]
  - {certificates: ["cn:f"], roles: [{role: read, tenants: [t]}]}
  - name: g
    tokens: ["` + hash("1") + `", "` + hash("1") + `"]
    roles: [{role: read, tenants: [t]}]
  - name: h
    certificates: ["cn:"]
    roles: [{role: read, tenants: [t]}]
  - name: i
    certificates: ["dns:x"]
    roles: [{role: read, tenants: [t]}]
  - name: j
    certificates: [cn:j]
    roles: []
  - name: k
    roles:
      - {role: read, tenants: [t]}
  - {name: l, certificates: ["cn:x"], roles: [{role: read, tenants: "*"}]}

  - name: m
    certificates: ["cn:x"]
    roles: [{role: read, tenants: "*"}]
  - {name: l, certificates: ["cn:y"], roles: [{role: read, tenants: "*"}]}
`

// A number is a text as it is written.
func TestOpenFile_ReadsNumbersAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	token := auth.NewToken()
	file := musttest.Make(t, auth.OpenFile, put(t, "tokens.yaml", head+stanza("7", token, "{role: read, tenants: [010, true, 1.0]}")))
	caller := authenticate(t, file, token)
	if caller.Name() != "7" || !caller.May(auth.Read, "010") || !caller.May(auth.Read, "true") || !caller.May(auth.Read, "1.0") {
		t.Errorf("the caller is %+v", caller)
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
	list := put(t, "tokens.yaml", "version: 1\ncallers:\n  - {name: a, tokens: ["+many("'"+hash("x")+"'", 17)+"], roles: [{role: read, tenants: [t]}]}\n")
	if _, err := auth.OpenFile(list); err == nil || !strings.Contains(err.Error(), "must have tokens or certificates, at most 16 of each") {
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
	file := musttest.Make(t, auth.OpenFile, path)
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
	musttest.NoError(t, loadNow(file))
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
	file := musttest.Make(t, auth.OpenFile, path)
	overwrite(t, path, head+stanza("ci", token, "{role: chef, tenants: [a]}"))
	if err := loadNow(file); err == nil || nameFor(file, token) != "ci" {
		t.Errorf("a bad file: %v, the token is that of %q", err, nameFor(file, token))
	}
	digest, _ := file.Look()
	musttest.NoError(t, os.Remove(path))
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
