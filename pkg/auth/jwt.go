package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// The limits of a JWT, in addition to the size of a token.
const (
	maxSubject = 256 // bytes
	maxKeyID   = 512 // bytes
)

// The reasons to refuse a JWT, in addition to those of the library. They are for the
// log.
var (
	errHeader  = errors.New("its header has no key id, or one that is too long, or names another type of token")
	errNoEnd   = errors.New("it does not say when it expires")
	errSubject = errors.New("its subject is missing, too long, or not printable")
	errRoles   = errors.New("its roles are neither a list of texts nor a text")
)

// authenticate returns the caller of the token. The error is for the log, except
// [ErrIssuerUnavailable].
//
// Source: RFC 7519 and RFC 8725.
func (i *Issuer) authenticate(ctx context.Context, token string) (Caller, error) {
	// A token that is not signed with an algorithm of the list does not parse.
	parsed, err := jwt.ParseSigned(token, i.algorithms)
	if err != nil {
		return Caller{}, fmt.Errorf("parse: %w", err)
	}
	header := parsed.Headers[0]
	if header.KeyID == "" || len(header.KeyID) > maxKeyID || !isAccessToken(header) {
		return Caller{}, errHeader
	}
	keys, err := i.key(ctx, header.KeyID, jose.SignatureAlgorithm(header.Algorithm))
	if err != nil {
		return Caller{}, err
	}
	var standard jwt.Claims
	claims := map[string]json.RawMessage{}
	for _, key := range keys {
		if err = parsed.Claims(key, &standard, &claims); err == nil {
			break
		}
	}
	if err != nil {
		return Caller{}, fmt.Errorf("verify: %w", err)
	}
	if err := i.check(standard, time.Now()); err != nil {
		return Caller{}, err
	}
	grants, err := readGrants(claims[i.cfg.RolesClaim])
	return NewCaller("oidc:"+standard.Subject, ByJWT, grants...), err
}

// isAccessToken reports whether the token's type, if it has one, is that of an access
// token and not, for example, of a logout token.
func isAccessToken(header jose.Header) bool {
	kind, there := header.ExtraHeaders[jose.HeaderType]
	if !there {
		return true
	}
	text, _ := kind.(string)
	switch strings.TrimPrefix(strings.ToLower(text), "application/") {
	case "jwt", "at+jwt":
		return true
	default:
		return false
	}
}

// check checks the claims that every token must have.
func (i *Issuer) check(claims jwt.Claims, now time.Time) error {
	if claims.Expiry == nil {
		return errNoEnd
	}
	expected := jwt.Expected{Issuer: i.cfg.URL, AnyAudience: jwt.Audience{i.cfg.Audience}, Time: now}
	if err := claims.ValidateWithLeeway(expected, i.cfg.Leeway); err != nil {
		return err
	}
	if claims.Subject == "" || len(claims.Subject) > maxSubject ||
		strings.ContainsFunc(claims.Subject, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return errSubject
	}
	return nil
}

// readGrants reads the claim of roles: a list of texts, or one text with spaces
// between them. It skips grants that [ParseGrant] refuses, so that an issuer may use
// roles that this server does not know; a skipped grant gives no right.
func readGrants(claim json.RawMessage) ([]Grant, error) {
	if len(claim) == 0 || string(claim) == "null" {
		return nil, nil
	}
	var texts []string
	if err := json.Unmarshal(claim, &texts); err != nil {
		var text string
		if err := json.Unmarshal(claim, &text); err != nil {
			return nil, errRoles
		}
		texts = strings.Fields(text)
	}
	var grants []Grant
	for _, text := range texts[:min(len(texts), maxGrants)] {
		if grant, err := ParseGrant(text); err == nil {
			grants = append(grants, grant)
		}
	}
	return grants, nil
}
