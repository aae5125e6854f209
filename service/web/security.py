"""Security headers of every page, and the check of redirect targets. Pure functions."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        # Styles of elements, such as the width of a progress bar.
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
    )
)

PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    # Without any referrer, a browser would send `Origin: null` with a form.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def safe_redirect(target: str) -> str:
    """Return a path of this site to open after signing in; any other target becomes the list of jobs."""
    plain = target.isascii() and target.isprintable() and "\\" not in target and len(target) <= 2000
    if not plain or not target.startswith("/") or target.startswith(("//", "/sign-in", "/v1/")):
        return "/jobs"
    return target
