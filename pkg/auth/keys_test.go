package auth_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/lucius-project/lucius/pkg/auth"
)

// The shortest time between two fetches of the keys, and the age at which they are
// fetched again.
const (
	refetch = 10 * time.Second
	refresh = time.Hour
)

func TestIssuer_IsFetchedOnceByTheFirstTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := edKey("k")
		fake := newIssuer(key.public())
		fake.takes = time.Second
		guarded := fake.checker(t)
		if fake.fetches() != 0 {
			t.Error("the issuer was asked before the first token")
		}
		token := key.sign(t, claims(nil))
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				if _, err := send(t, guarded, token); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if fake.fetches() != 1 {
			t.Errorf("100 tokens at once caused %d fetches", fake.fetches())
		}
	})
}

func TestIssuer_RotatesItsKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, young := edKey("old"), edKey("young")
		fake := newIssuer(old.public())
		guarded := fake.checker(t)
		if _, err := send(t, guarded, old.sign(t, claims(nil))); err != nil {
			t.Fatal(err)
		}
		fake.set(func() { fake.keys = []any{young.public()} })
		time.Sleep(refetch)
		if _, err := send(t, guarded, young.sign(t, claims(nil))); err != nil {
			t.Errorf("the new key is not found: %v", err)
		}
		synctest.Wait() // The key set answers with the keys that it fetched before it keeps them.
		caller, err := send(t, guarded, old.sign(t, claims(nil)))
		refused(t, caller, err, auth.ErrInvalidCredential)
	})
}

func TestIssuer_AFloodOfKeyIDsCostsOneFetchInAnInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := edKey("k")
		fake := newIssuer(key.public())
		guarded := fake.checker(t)
		for n := range 3 {
			for i := range 100 {
				made := edKey(fmt.Sprintf("made-up-%d-%d", n, i))
				caller, err := send(t, guarded, made.sign(t, claims(nil)))
				refused(t, caller, err, auth.ErrInvalidCredential)
			}
			if _, err := send(t, guarded, key.sign(t, claims(nil))); err != nil {
				t.Errorf("a good token is refused in the flood: %v", err)
			}
			if fake.fetches() != n+1 {
				t.Errorf("%d fetches in %d intervals", fake.fetches(), n+1)
			}
			time.Sleep(refetch)
		}
	})
}

func TestIssuer_RefreshesOldKeysInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		withdrawn := edKey("k")
		fake := newIssuer(withdrawn.public())
		guarded := fake.checker(t)
		token := func() string { return withdrawn.sign(t, claims(nil)) }
		if _, err := send(t, guarded, token()); err != nil {
			t.Fatal(err)
		}
		fake.set(func() { fake.keys = []any{edKey("other").public()}; fake.takes = time.Second })
		time.Sleep(refresh)
		begun := time.Now()
		if _, err := send(t, guarded, token()); err != nil || time.Since(begun) > 0 {
			t.Errorf("the token waited %s: %v", time.Since(begun), err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		caller, err := send(t, guarded, token())
		refused(t, caller, err, auth.ErrInvalidCredential)
	})
}

// The first token after a long pause could have a key that was withdrawn in the
// meantime.
func TestIssuer_RefreshesVeryOldKeysBeforeItUsesThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		withdrawn := edKey("k")
		fake := newIssuer(withdrawn.public())
		guarded := fake.checker(t)
		if _, err := send(t, guarded, withdrawn.sign(t, claims(nil))); err != nil {
			t.Fatal(err)
		}
		fake.set(func() { fake.keys = []any{edKey("other").public()}; fake.takes = time.Second })
		time.Sleep(refresh + refetch)
		for range 2 {
			caller, err := send(t, guarded, withdrawn.sign(t, claims(nil)))
			refused(t, caller, err, auth.ErrInvalidCredential)
		}
	})
}

// A token with a new key may be valid: the client should send it again.
func TestIssuer_ThatIsDownMayHaveANewKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		known, young := edKey("k"), edKey("young")
		fake := newIssuer(known.public())
		guarded := fake.checker(t)
		if _, err := send(t, guarded, known.sign(t, claims(nil))); err != nil {
			t.Fatal(err)
		}
		fake.set(func() { fake.down = errors.New("no route") })
		time.Sleep(refetch)
		for range 2 {
			caller, err := send(t, guarded, young.sign(t, claims(nil)))
			refused(t, caller, err, auth.ErrIssuerUnavailable)
		}
		if _, err := send(t, guarded, known.sign(t, claims(nil))); err != nil {
			t.Errorf("a token with a known key: %v", err)
		}
	})
}

func TestIssuer_ThatIsDownIsRetriedWithADelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := edKey("k")
		fake := newIssuer(key.public())
		fake.down = errors.New("no route")
		guarded := fake.checker(t)
		for range 20 {
			caller, err := send(t, guarded, key.sign(t, claims(nil)))
			refused(t, caller, err, auth.ErrIssuerUnavailable)
		}
		if n := fake.discoveries(); n != 1 {
			t.Errorf("%d requests at once", n)
		}
		for range 600 {
			time.Sleep(time.Second)
			_, _ = send(t, guarded, key.sign(t, claims(nil)))
		}
		if n := fake.discoveries(); n < 50 || n > 61 {
			t.Errorf("%d requests in ten minutes", n)
		}
		fake.set(func() { fake.down = nil })
		time.Sleep(refetch)
		if _, err := send(t, guarded, key.sign(t, claims(nil))); err != nil {
			t.Errorf("the issuer is back: %v", err)
		}
	})
}

func TestIssuer_KeysAreUsedForADayWithoutIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := edKey("k")
		fake := newIssuer(key.public())
		guarded := fake.checker(t)
		if _, err := send(t, guarded, key.sign(t, claims(nil))); err != nil {
			t.Fatal(err)
		}
		fake.set(func() { fake.down = errors.New("no route") })
		time.Sleep(23 * time.Hour)
		if _, err := send(t, guarded, key.sign(t, claims(nil))); err != nil {
			t.Errorf("after 23 hours: %v", err)
		}
		time.Sleep(2 * time.Hour)
		caller, err := send(t, guarded, key.sign(t, claims(nil)))
		refused(t, caller, err, auth.ErrIssuerUnavailable)
	})
}

func TestIssuer_ThatHangsTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := edKey("k")
		fake := newIssuer(key.public())
		fake.takes = time.Hour
		guarded := fake.checker(t)
		r := request(t, http.MethodGet, "Authorization", "Bearer "+key.sign(t, claims(nil)))
		gone, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		caller, err := guarded.Authenticate(r.WithContext(gone))
		refused(t, caller, err, auth.ErrIssuerUnavailable)
		if took := time.Since(begun); took != time.Second {
			t.Errorf("a client that gave up waited %s", took)
		}
		caller, err = guarded.Authenticate(r)
		refused(t, caller, err, auth.ErrIssuerUnavailable)
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("one that did not give up waited %s", took)
		}
	})
}

func TestIssuer_AnswersThatAreRefused(t *testing.T) {
	t.Parallel()
	key := edKey("k")
	for name, change := range map[string]func(*issuer){
		"it calls itself another":     func(i *issuer) { i.discovery["issuer"] = "https://other.example" },
		"keys over plain http":        func(i *issuer) { i.discovery["jwks_uri"] = "http://127.0.0.1/keys" },
		"keys in a file":              func(i *issuer) { i.discovery["jwks_uri"] = "file:///etc/keys" },
		"no URL of keys":              func(i *issuer) { delete(i.discovery, "jwks_uri") },
		"keys that are not there":     func(i *issuer) { i.discovery["jwks_uri"] = issuerURL + "/none" },
		"keys that are not keys":      func(i *issuer) { i.keys = []any{7} },
		"keys that are too large":     func(i *issuer) { i.keys = []any{map[string]string{"kty": strings.Repeat("x", 1<<20)}} },
		"a redirect":                  func(i *issuer) { i.answer = redirect },
		"not JSON":                    func(i *issuer) { i.text("<html>") },
		"an answer that is too large": func(i *issuer) { i.text(`{"issuer":"` + strings.Repeat("x", 1<<20) + `"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newIssuer(key.public())
			change(fake)
			caller, err := send(t, fake.checker(t), key.sign(t, claims(nil)))
			refused(t, caller, err, auth.ErrIssuerUnavailable)
		})
	}
}

// A token that no fit key of the issuer has signed is invalid.
func TestIssuer_KeysThatAreNotUsed(t *testing.T) {
	t.Parallel()
	key := edKey("k")
	weak := pair{"k", must(rsa.GenerateKey(rand.Reader, 1024)), jose.RS256}
	weakPS := pair{"k", weak.private, jose.PS256}
	nameless := key.public()
	nameless.KeyID = ""
	for name, test := range map[string]struct {
		signer pair
		keys   []any
	}{
		"none":                       {key, nil},
		"a key without an id":        {key, []any{nameless}},
		"a private key":              {key, []any{jose.JSONWebKey{Key: key.private, KeyID: "k"}}},
		"a kind that is not known":   {key, []any{map[string]string{"kty": "x", "kid": "k"}}},
		"an RSA key that is short":   {weak, []any{weak.public()}},
		"the same, with PSS padding": {weakPS, []any{weakPS.public()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller, err := send(t, newIssuer(test.keys...).checker(t), test.signer.sign(t, claims(nil)))
			refused(t, caller, err, auth.ErrInvalidCredential)
		})
	}
}

func redirect(r *http.Request) *http.Response {
	if strings.HasPrefix(r.URL.Path, "/elsewhere") {
		return answer(http.StatusOK, "{}")
	}
	found := answer(http.StatusFound, "")
	found.Header.Set("Location", "https://issuer.example/elsewhere")
	return found
}

// text makes the issuer answer every request with the body.
func (i *issuer) text(body string) {
	i.answer = func(*http.Request) *http.Response { return answer(http.StatusOK, body) }
}
