// Package pki makes the certificates of one cluster: an authority, and what it signs.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// life is how long a certificate is good: much longer than a test cluster.
const life = 365 * 24 * time.Hour

// A Pair is a certificate and its key, both in PEM.
type Pair struct{ Cert, Key []byte }

// An Authority signs certificates.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  crypto.Signer
}

// New makes an authority.
func New(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	t, err := template(name)
	if err != nil {
		return nil, err
	}
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	a := &Authority{cert: t, key: key}
	if a.Pair, err = sign(t, t, key, key); err != nil {
		return nil, err
	}
	return a, nil
}

// Client signs a certificate that proves a user name and groups to the API server.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	return a.issue(user, groups, nil, x509.ExtKeyUsageClientAuth)
}

// Server signs a certificate for a server with names and addresses.
func (a *Authority) Server(name string, hosts ...string) (Pair, error) {
	return a.issue(name, nil, hosts, x509.ExtKeyUsageServerAuth)
}

func (a *Authority) issue(name string, groups, hosts []string, use x509.ExtKeyUsage) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate key: %w", err)
	}
	t, err := template(name)
	if err != nil {
		return Pair{}, err
	}
	t.Subject.Organization = groups
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{use}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return sign(t, a.cert, key, a.key)
}

// Key makes a pair for signing tokens: Cert holds the public key.
func Key() (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return Pair{}, fmt.Errorf("encode key: %w", err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), Key: private}, nil
}

func template(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), // clocks differ
		NotAfter:     time.Now().Add(life),
	}, nil
}

func sign(t, parent *x509.Certificate, key, by crypto.Signer) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), by)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate of %s: %w", t.Subject.CommonName, err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: private}, nil
}

// encodeKey uses the form that every part of Kubernetes reads.
func encodeKey(key crypto.Signer) ([]byte, error) {
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("encode key: %T is not an ECDSA key", key)
	}
	der, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
