package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// secretPrefix begins the text form of a secret.
const secretPrefix = "whsec_"

// The sizes of a secret in bytes, before base64.
const (
	minSecret = 24
	maxSecret = 64
)

// Secret is a key that signs webhooks. It prints as whsec_*** with every verb of fmt,
// so that no log contains it. The zero value is invalid.
type Secret struct{ key string }

// ParseSecret parses the text form of a secret: whsec_ and 24 to 64 bytes in standard
// base64. The error says what is wrong without quoting the secret.
func ParseSecret(text string) (Secret, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		return Secret{}, errors.New("webhook: a secret must begin with " + secretPrefix)
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || base64.StdEncoding.EncodeToString(key) != encoded {
		return Secret{}, errors.New("webhook: a secret must be base64 after " + secretPrefix)
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return Secret{}, fmt.Errorf("webhook: a secret must have %d to %d bytes, has %d", minSecret, maxSecret, len(key))
	}
	return Secret{key: string(key)}, nil
}

// Reveal returns the text form of the secret, with which a receiver verifies signatures.
func (s Secret) Reveal() string {
	return secretPrefix + base64.StdEncoding.EncodeToString([]byte(s.key))
}

// Format writes the secret masked, for every verb.
func (s Secret) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, secretPrefix+"***") // Writes to fmt's buffer do not fail.
}

// ForTenant derives the tenant's secret, which is always the same. It reveals nothing about
// s, so one tenant's receivers cannot forge another tenant's signatures.
func (s Secret) ForTenant(tenantID string) Secret {
	mac := hmac.New(sha256.New, []byte(s.key))
	mac.Write([]byte("lucius webhook secret of tenant\n" + tenantID))
	return Secret{key: string(mac.Sum(nil))}
}

// TenantSecrets returns a function for [Config] that derives each tenant's secrets from the
// given ones. To replace a secret, give both for a while, so that both sign.
func TenantSecrets(secrets ...Secret) func(tenantID string) []Secret {
	return func(tenantID string) []Secret {
		own := make([]Secret, len(secrets))
		for i, secret := range secrets {
			own[i] = secret.ForTenant(tenantID)
		}
		return own
	}
}

// Sign returns the webhook-signature header of an attempt: one signature for each secret,
// separated by spaces. Clients must not be able to choose the id.
func Sign(id string, at time.Time, body []byte, secrets ...Secret) string {
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret.key))
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " ")
}
